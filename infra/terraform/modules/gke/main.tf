resource "google_container_cluster" "dlock" {
  name             = "dlock"
  location         = var.region
  enable_autopilot = true
  network          = var.network
  subnetwork       = var.subnetwork

  # A laboratory: `terraform destroy` is how it ends.
  deletion_protection = false

  release_channel {
    channel = "REGULAR"
  }

  ip_allocation_policy {
    cluster_secondary_range_name  = "pods"
    services_secondary_range_name = "services"
  }

  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = false
    master_ipv4_cidr_block  = "172.16.0.0/28"
  }

  # Who may speak to the API server at all; everybody is still asked who they are.
  dynamic "master_authorized_networks_config" {
    for_each = length(var.authorized_networks) > 0 ? [true] : []

    content {
      dynamic "cidr_blocks" {
        for_each = var.authorized_networks

        content {
          cidr_block = cidr_blocks.value
        }
      }
    }
  }

  # Secrets are mounted from Secret Manager (SecretProviderClass).
  secret_manager_config {
    enabled = true
  }

  workload_identity_config {
    workload_pool = "${var.project_id}.svc.id.goog"
  }
}
