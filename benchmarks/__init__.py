"""`diffusionner bench`: what training and inference cost, with the encoder alone as yardstick."""
