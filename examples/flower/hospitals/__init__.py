"""A Flower app: several hospitals learn one model with FedVRA, and no record leaves its hospital."""
