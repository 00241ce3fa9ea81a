output "cluster" {
  value = google_container_cluster.dlock.name
}

output "workload_pool" {
  value = google_container_cluster.dlock.workload_identity_config[0].workload_pool
}
