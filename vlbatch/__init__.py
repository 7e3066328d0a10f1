"""Caption images in bulk with open vision-language models."""

__version__ = "0.1.0"
