"""From a setting to text for one launcher; each format has its own quoting and a reader for the round trip."""
