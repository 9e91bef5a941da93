"""The stages of a plan, one file each: what each of them takes out of the next request, and when."""
