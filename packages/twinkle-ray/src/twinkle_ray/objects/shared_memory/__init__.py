"""Large values of one host: written once into memory that every process of it can map, each for itself."""
