"""Routes that predict and plan services of language models"""
