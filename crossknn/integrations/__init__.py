"""crossknn inside other libraries: a module each, named after the library, which must be installed to import it."""
