"""How large what is said is: tokens, weighted characters, pixels."""
