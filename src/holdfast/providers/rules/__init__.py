"""The validator, which checks a request by the rules of its API, and the parts that rules are made of."""
