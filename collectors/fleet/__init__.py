"""Campaigns across machines: one Ray actor per device measures, one driver stores."""
