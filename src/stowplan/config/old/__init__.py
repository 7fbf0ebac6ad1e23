"""Configuration files of older releases, v1alpha1 to v1beta3, and Policy files, converted to v1."""
