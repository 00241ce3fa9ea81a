output "accounts" {
  value = { for name, account in google_service_account.workload : name => account.email }
}

output "secrets" {
  value = [for secret in google_secret_manager_secret.settings : secret.secret_id]
}
