"""Where entries and blobs are kept. Everything here has effects and is synchronous."""
