"""Task sets in, data sets out."""
