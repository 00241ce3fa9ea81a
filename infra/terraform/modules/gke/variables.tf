variable "project_id" {
  type = string
}

variable "region" {
  type = string
}

variable "network" {
  type = string
}

variable "subnetwork" {
  type = string
}

variable "authorized_networks" {
  type        = list(string)
  description = "CIDR ranges that reach the API server. Empty: all."
  default     = []
}
