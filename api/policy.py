"""Headers that every answer has, whoever gives it: what a browser may do with it, which is as little as possible.

Sources: MDN and the OWASP HTTP Headers Cheat Sheet for each header; CSP Level 3 for the directives.
"""

from __future__ import annotations

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: files of this service alone, nothing inline, no frames around it, no forms out of it."""

_UNUSED = (
    "accelerometer", "autoplay", "camera", "display-capture", "encrypted-media", "fullscreen", "geolocation", "gyroscope",
    "hid", "magnetometer", "microphone", "midi", "payment", "picture-in-picture", "publickey-credentials-get",
    "screen-wake-lock", "serial", "usb", "xr-spatial-tracking",
)  # fmt: skip
PERMISSIONS_POLICY = ", ".join(f"{name}=()" for name in _UNUSED)
"""Permissions-Policy: the page asks for none of a browser's devices. The clipboard is left out, as the page copies to it."""

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    # No window of another site holds a handle to the page, and no other site embeds an answer.
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", PERMISSIONS_POLICY.encode()),
)
"""Headers of every answer beside its Content-Security-Policy."""
