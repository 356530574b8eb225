"""What the machine has: memory, processor, disks, and how hard they are pressed."""
