from diffusionner.cli import main

main()
