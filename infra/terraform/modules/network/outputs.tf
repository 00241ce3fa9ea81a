output "network" {
  value = google_compute_network.dlock.id
}

output "subnetwork" {
  value = google_compute_subnetwork.cluster.id
}

# To be waited for: without the peering an instance has nowhere to be.
output "databases" {
  value = google_service_networking_connection.databases.network
}
