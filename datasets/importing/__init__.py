"""What the importers of other projects' measurements share."""
