"""The explorer page at `/`, the pages of documentation and routes under `/docs`, and the OpenAPI document."""
