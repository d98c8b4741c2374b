"""The rules of sizes, orders and names, and their errors."""
