"""Routes that show what there is: catalogue, model card, accuracy, measurements, nights."""
