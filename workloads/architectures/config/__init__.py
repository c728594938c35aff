"""From a model's `config.json` to its facts: fields read and checked, a reader per architecture, the models that ship"""
