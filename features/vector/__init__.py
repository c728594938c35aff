"""How a case becomes a feature vector: the columns of a family, and the one function that fills them."""
