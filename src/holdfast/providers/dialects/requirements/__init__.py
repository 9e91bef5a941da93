"""What providers ask of a request beyond the rules of its API: the kinds of requirements, written once for all."""
