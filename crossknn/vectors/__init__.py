"""Where item vectors live and how the nearest of them are found."""
