"""Plain transcriptions of what the papers' programs compute, to compare speed and memory with.

Each takes one of our models and computes the same function from the same parameters, as the original program does:
attention by two products and a softmax, masks built in every call, layers one by one.
"""
