"""The stages of planning, one file each, and beside them what several stages share; ``order.py`` lists them."""
