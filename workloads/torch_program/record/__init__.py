"""Recording a PyTorch program: its operators, what a GPU would do in their place, and what is put back. Needs torch."""
