"""Importers of other projects' and profilers' measurements, one file each, found by `importer.importers`."""
