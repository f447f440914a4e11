"""Durable storage: atomic files and folders, safetensors, resumable arrays and score logs."""
