"""What sizes and orders have to satisfy, and the errors that say so."""
