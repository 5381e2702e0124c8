"""What may follow a normalization, one module a stage: its value, its gradients, and how far a kernel's may be off."""
