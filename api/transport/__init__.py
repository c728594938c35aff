"""What routes share of HTTP: bodies, problems, headers of answers, cached content, the context of a request."""
