"""Reports for people: one HTML file each that opens offline, in light and in dark."""
