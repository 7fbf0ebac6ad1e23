"""Extenders made of plain functions, to use and to copy from: `stowplan extender --functions MODULE`."""
