"""Small models that rank a compiler's choices: training, the flat file, and its evaluation."""
