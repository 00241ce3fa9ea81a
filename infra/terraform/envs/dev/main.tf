# Everything that runs, and what it costs while it does: docs/deploy.md. After infra/terraform/bootstrap:
#
#     terraform -chdir=infra/terraform/envs/dev init
#     terraform -chdir=infra/terraform/envs/dev apply

module "network" {
  source = "../../modules/network"

  region = var.region
}

module "registry" {
  source = "../../modules/registry"

  region = var.region
}

module "gke" {
  source = "../../modules/gke"

  project_id          = var.project_id
  region              = var.region
  network             = module.network.network
  subnetwork          = module.network.subnetwork
  authorized_networks = var.authorized_networks
}

# Regional, to show a failover: a synchronous standby takes over, and no committed grant is lost (NFR-05).
module "pg_lock" {
  source = "../../modules/cloudsql"

  name              = "dlock-pg-lock"
  database          = "lockdb"
  region            = var.region
  network           = module.network.databases
  availability_type = "REGIONAL"
}

# Zonal, for its price: when its zone is gone, payouts wait.
module "pg_pay" {
  source = "../../modules/cloudsql"

  name              = "dlock-pg-pay"
  database          = "paydb"
  region            = var.region
  network           = module.network.databases
  availability_type = "ZONAL"
}

module "workloads" {
  source = "../../modules/workloads"

  project_id    = var.project_id
  region        = var.region
  workload_pool = module.gke.workload_pool
  namespace     = "dlock"

  workloads = {
    lock-server       = { secret = true, database = true }
    payment-resource  = { secret = true, database = true }
    rail-proxy        = { secret = true, database = true }
    rail-stub         = { secret = false, database = false }
    payout-executor   = { secret = false, database = false }
    reconciler        = { secret = false, database = false }
    migrate-lockdb    = { secret = true, database = true }
    migrate-paydb     = { secret = true, database = true }
    dlock-etcd-backup = { secret = false, database = false }
  }
}

module "etcd_backup" {
  source = "../../modules/etcd-backup"

  project_id = var.project_id
  region     = var.region
  writer     = module.workloads.accounts["dlock-etcd-backup"]
}
