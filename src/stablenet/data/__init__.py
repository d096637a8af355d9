"""Data sets as tables, settings that split them, manifests that record a split, and the pixels behind it."""
