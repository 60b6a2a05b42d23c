"""Programs that use Dwell, from a dozen lines to a whole job."""
