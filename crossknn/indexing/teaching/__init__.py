"""Teaching: knowledge distillation of the cross-encoder into the dual encoder, on lists of scored items."""
