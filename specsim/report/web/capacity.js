/* What `specsim capacity` found, as it wrote it. */

function capacityCard() {
  return null;
}
