"""The explorer page at `/`, the page of the REST interface at `/docs`, and the OpenAPI document."""
