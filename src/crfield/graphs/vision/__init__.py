"""What cameras see as problems on graphs: voxels under rays, and poses of parts."""
