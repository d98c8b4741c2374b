"""Language models: how they are made, what they compute, and the component that trains them."""
