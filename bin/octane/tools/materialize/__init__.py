"""Links replaced by files; stores verified."""
