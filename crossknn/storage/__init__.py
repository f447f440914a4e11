"""Durable storage: atomic files and folders, safetensors, resumable score logs."""
