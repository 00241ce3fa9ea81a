output "cluster" {
  value = module.gke.cluster
}

output "repository" {
  value = module.registry.repository
}

output "instances" {
  value = [module.pg_lock.connection_name, module.pg_pay.connection_name]
}

output "secrets" {
  value = module.workloads.secrets
}

output "etcd_backup" {
  value = module.etcd_backup.bucket
}
