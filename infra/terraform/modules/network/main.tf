resource "google_compute_network" "dlock" {
  name                    = "dlock"
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "cluster" {
  name                     = "dlock-cluster"
  region                   = var.region
  network                  = google_compute_network.dlock.id
  ip_cidr_range            = "10.20.0.0/22"
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = "10.24.0.0/17"
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = "10.25.0.0/20"
  }
}

# Where Cloud SQL lives. The network policy `to-google` names the same range.
resource "google_compute_global_address" "databases" {
  name          = "dlock-databases"
  purpose       = "VPC_PEERING"
  address_type  = "INTERNAL"
  address       = "10.30.0.0"
  prefix_length = 20
  network       = google_compute_network.dlock.id
}

resource "google_service_networking_connection" "databases" {
  network                 = google_compute_network.dlock.id
  service                 = "servicenetworking.googleapis.com"
  reserved_peering_ranges = [google_compute_global_address.databases.name]
  # A peering that is deleted too early blocks itself.
  deletion_policy = "ABANDON"
}

# Nodes have no address of their own outside; images that are not Google's come this way.
resource "google_compute_router" "out" {
  name    = "dlock-out"
  region  = var.region
  network = google_compute_network.dlock.id
}

resource "google_compute_router_nat" "out" {
  name                               = "dlock-out"
  region                             = var.region
  router                             = google_compute_router.out.name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"
}
