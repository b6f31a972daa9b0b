"""File formats as pydantic models, one file per kind. Every format names its schema and version."""
