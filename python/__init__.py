"""What `import kernelcast` gives: questions to a model that stays loaded, and answers that compute and are drawn"""
